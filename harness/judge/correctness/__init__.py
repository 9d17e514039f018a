"""Is an answer right, and if it is not, what does the error look like?"""
