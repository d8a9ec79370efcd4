"""Hands the engine's log on to standard output while it happens.

Lines of build scripts and tests go out as they are. The engine itself replaces its own long prefixes in them by
`$PREFIX`, `$BUILD_PREFIX` and `$SRC_DIR`.
"""

import sys


class Log:
    """A progress callback of the engine. `watch(message)` is called after each message, before the engine goes on."""

    def __init__(self, watch=None):
        self.watch = watch
        # The first error names the cause; what follows is advice on how to repeat it by hand.
        self.error = ""
        self.broken = None

    def on_log(self, event):
        # An exception must not travel through the engine's threads: it is kept and raised by the step.
        try:
            message = event.message.strip("\n")
            if event.level == "error" and message.strip():
                self.error = self.error or message.strip().splitlines()[0]
            if message.strip():
                mark = {"error": "error: ", "warn": "warning: "}.get(event.level, "")
                sys.stdout.write(f"{mark}{message}\n")
                sys.stdout.flush()
            if self.watch is not None:
                self.watch(message)
        except BaseException as error:  # noqa: BLE001
            self.broken = self.broken or error

    def on_build_step(self, event):
        pass

    def on_download_start(self, event):
        pass

    def on_download_progress(self, event):
        pass

    def on_download_complete(self, event):
        pass
