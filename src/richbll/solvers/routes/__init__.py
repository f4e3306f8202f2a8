"""Ways to one parameter's part of H = UᵀΦ^mΦ^mᵀU, for the exact solver."""
