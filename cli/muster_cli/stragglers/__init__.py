"""Names the rank, stage or data that slows a job, from the recorded times of its steps: files, report and plot."""
