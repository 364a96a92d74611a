"""The store of exported models on this machine: pulled from the hub, or exported when first opened."""
