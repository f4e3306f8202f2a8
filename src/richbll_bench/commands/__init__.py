"""What `richbll` offers from the evidence, one file per command; `richbll.cli` mounts them when they are asked for."""
