"""Ways to choose hyper-parameters: pure functions that return them and never set them, one file per idea."""
