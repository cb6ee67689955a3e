"""What the library was tried and learned with: experiments, recipes of the zoo's entries, the demonstration.

It is in the repository and not in the installed package: nothing in ``mirrordescent`` needs it but some commands.
"""
