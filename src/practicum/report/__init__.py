"""Pages about runs: reading runs, what a page shows of them, and the page in one file."""
