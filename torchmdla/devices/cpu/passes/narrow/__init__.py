"""Elements of less than 32 bits: their forms and layouts, sums, buffers, and the passes that use them."""
