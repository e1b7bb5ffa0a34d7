"""What vLLM's profile run needs at its peak: one phase per thing that can be the largest, and the largest of
them.
"""
