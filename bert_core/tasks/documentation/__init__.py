"""Tasks without a download: documentation on this machine, labelled by the code it stands in."""
