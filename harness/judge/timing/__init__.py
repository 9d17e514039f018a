"""How long does it take, on which device, and is that fast enough?"""
