"""Stand-ins with real sockets, for what a real server cannot be made to do on cue."""
