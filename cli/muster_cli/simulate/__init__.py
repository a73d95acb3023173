"""`muster simulate`: what policies would cost and save, on a simulated clock: files, runs, report and page."""
