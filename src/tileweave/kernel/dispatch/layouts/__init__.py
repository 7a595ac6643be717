"""Where elements are: register layouts read backwards, places in memory, layouts of one's own choice, traffic."""
