"""Where state lives that outlasts a request: files now, shared stores later."""
