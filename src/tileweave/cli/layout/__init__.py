"""The command `tileweave layout`."""
