"""The devices of simulated nodes and their budgets: as many as the fleet file says, or those of ResourceSlices."""
