"""Workers of this machine: started, watched, restarted."""
