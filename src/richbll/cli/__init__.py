"""The command line, one file per command. A file's name is the command's name, and its `command` is what runs."""
