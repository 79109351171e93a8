package dev.paceline.demo.device

/** Why the system says that the app ended the last time, as far as a user may want to know it. */
enum class ExitCause { LOW_MEMORY, MEMORY_LIMIT, NATIVE_CRASH, CRASH, ANR, EXCESSIVE_USE, KILLED }

data class LastExit(val cause: ExitCause, val description: String, val rssBytes: Long)

/**
 * From android.app.ApplicationExitInfo's fields; null for an end that the user or the system meant, such as an update.
 *
 * Where a system does not report low memory, it is only seen as signal 9. From Android 17 on there is a limit of anonymous memory
 * and swap for each app, which only the description names.
 */
fun lastExit(reason: Int, status: Int, description: String?, rssKib: Long): LastExit? {
    val text = description.orEmpty()
    val cause = when {
        "MemoryLimiter" in text -> ExitCause.MEMORY_LIMIT
        reason == REASON_SIGNALED && status == SIGKILL -> ExitCause.KILLED
        else -> CAUSES[reason]
    }
    return cause?.let { LastExit(it, text, rssKib * 1024) }
}

// Values of ApplicationExitInfo's constants, so that this can be tested without Android.
private const val REASON_SIGNALED = 2
private const val SIGKILL = 9
private val CAUSES = mapOf(
    3 to ExitCause.LOW_MEMORY,
    4 to ExitCause.CRASH,
    5 to ExitCause.NATIVE_CRASH,
    6 to ExitCause.ANR,
    9 to ExitCause.EXCESSIVE_USE,
)
