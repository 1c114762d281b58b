"""The wing that proves: plan, run and judge cases, and find what broke them."""
