"""What a plan asks for is done here: API and proxy calls, Events, and what was refused."""
