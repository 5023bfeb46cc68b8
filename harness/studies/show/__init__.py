"""`show`: a variant's source, PTX and resources, or its order of addition."""
