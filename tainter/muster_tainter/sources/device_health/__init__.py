"""The health of devices that the kubelet writes into the status of pods, as a source."""
