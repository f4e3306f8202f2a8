"""Image classification: data, the paper's CNN, its training, and methods that say which images not to trust."""
