"""What `import confluent_kafka` finds first when this folder is on the search path: it puts the facade in its own place."""

import sys

from msgtx.compat import substitute

del sys.modules[__name__]  # the original is imported under this name
substitute.put()
