"""What was run and what a person sees: journals, the history, the summary in the terminal, the page, JUnit XML."""
