"""`show`: a variant's source, PTX and resources, or the order in which it adds."""
