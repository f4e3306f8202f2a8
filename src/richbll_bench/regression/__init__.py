"""Regression as the paper does it: splits, the backbone, and networks of many seeds trained as one."""
