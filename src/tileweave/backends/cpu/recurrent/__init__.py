"""The steps of a recurrent layer as one kernel."""
