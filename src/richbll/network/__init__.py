"""Reading a user's model: its last layer, its batches, its gradients. The model is never written to."""
