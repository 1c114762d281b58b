"""Records and history as pages, terminal text, JUnit and Markdown."""
