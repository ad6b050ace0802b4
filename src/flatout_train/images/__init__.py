"""flatout.image_loader: pictures from files to the device, decoded and augmented in batches."""
