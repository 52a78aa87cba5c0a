"""The errors that onnxfuse raises on purpose.  The command line prints one line for each and no traceback."""


class OnnxfuseError(Exception):
    """The input, the request or the environment is at fault; the message is one line for the user (exit status 2)."""


class ParityError(OnnxfuseError):
    """The optimized model does not compute what the original computes (exit status 1)."""
