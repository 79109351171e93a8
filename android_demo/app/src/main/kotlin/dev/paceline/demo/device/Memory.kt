package dev.paceline.demo.device

/** What loading may take: what the system could give before it begins to kill; never 0, which would not ask. */
fun memoryBudget(availableBytes: Long, thresholdBytes: Long): Long = maxOf(1, availableBytes - thresholdBytes)

/** Anonymous memory of this process, from the text of /proc/self/status: what counts against it, unlike mapped weights. */
fun rssAnonBytes(status: String): Long? =
    status.lineSequence().firstOrNull { it.startsWith("RssAnon:") }?.filter(Char::isDigit)?.toLongOrNull()?.times(1024)

/**
 * Whether the model is freed at a level of ComponentCallbacks2.onTrimMemory: in the background (40 and more), where the process is
 * killed otherwise, and, up to Android 13, when memory is critical in the foreground (15). Not as soon as the user looks elsewhere (20).
 */
fun freesModel(level: Int): Boolean = level >= TRIM_MEMORY_BACKGROUND || level == TRIM_MEMORY_RUNNING_CRITICAL

private const val TRIM_MEMORY_RUNNING_CRITICAL = 15
private const val TRIM_MEMORY_BACKGROUND = 40
