"""What a rank's parameters and buffers take, to the byte."""
