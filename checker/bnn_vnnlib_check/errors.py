"""The two ways in which a check ends without acceptance."""


class UnreadableError(Exception):
    """A file is damaged, too large, or uses what this version does not know: nothing is said about the claim."""


class RejectedError(Exception):
    """The files were read, and the proof does not show what the certificate claims."""
