"""Options for a Java that lives for seconds: compiling well is half of what its start costs."""

from __future__ import annotations

from penstock.tasks.worker.java_classes import sharing_options

JAVA_IN_A_HURRY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: The same for one that runs Spark.
SPARK_IN_A_HURRY = " ".join([JAVA_IN_A_HURRY, *sharing_options("")])
