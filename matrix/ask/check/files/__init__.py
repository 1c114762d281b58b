"""Read what files declare about a stack: package versions, images, commands. Nothing is executed or fetched."""
