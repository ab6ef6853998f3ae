"""`confluent_kafka.cimpl` with the facade's clients: the original's Python layer runs on top of this module unchanged."""

from confluent_kafka import cimpl as _original

from msgtx.compat.confluent_kafka.administration import Administration
from msgtx.compat.confluent_kafka.consumer import Consumer
from msgtx.compat.confluent_kafka.producer import Producer

globals().update({name: value for name, value in vars(_original).items() if not name.startswith("__")})
globals().update({"Consumer": Consumer, "Producer": Producer, "_AdminClientImpl": Administration})
