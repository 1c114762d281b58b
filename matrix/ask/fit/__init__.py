"""`megatrix fit`: the newest releases that fit each other, a GPU and a driver, with the evidence. Pure."""
