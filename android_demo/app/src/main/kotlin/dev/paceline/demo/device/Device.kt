package dev.paceline.demo.device

import android.app.ActivityManager
import android.content.Context
import android.os.PowerManager
import android.os.SystemClock
import java.io.File

/** @property headroom 1 is where the system begins to throttle severely; null where the device does not say. */
data class Readings(val rssAnonBytes: Long?, val thermalStatus: Int, val headroom: Float?)

/** What the system says of this phone and process. */
class Device(private val context: Context) {
    private val power = context.getSystemService(PowerManager::class.java)
    private val activities = context.getSystemService(ActivityManager::class.java)
    private var headroom: Float? = null
    private var headroomAt = -HEADROOM_EVERY_MS

    fun readings() = Readings(rssAnonBytes(File("/proc/self/status").readText()), power.currentThermalStatus, headroom())

    fun memoryBudget(): Long {
        val info = ActivityManager.MemoryInfo()
        activities.getMemoryInfo(info)
        return memoryBudget(info.availMem, info.threshold)
    }

    /** How the app ended the last time, and when; null where there is nothing to tell. */
    fun lastExit(): Pair<Long, LastExit>? {
        val info = activities.getHistoricalProcessExitReasons(null, 0, 1).firstOrNull() ?: return null
        return lastExit(info.reason, info.status, info.description, info.rss)?.let { info.timestamp to it }
    }

    /** Where the system unpacks the app's libraries; empty where it leaves them inside the app. */
    fun nativeLibraries(): String = context.applicationInfo.nativeLibraryDir

    /** libLiteRt.so as a file, where the system unpacked it; otherwise the linker finds it inside the app. */
    fun runtimeLibrary(): String? = File(nativeLibraries(), "libLiteRt.so").takeIf { it.exists() }?.path

    /** For packed weights and measured costs: this device's, so not in backups. */
    fun cacheDir(): String = File(context.noBackupFilesDir, "paceline").apply { mkdirs() }.path

    /** The system answers NaN where it is asked more often. */
    private fun headroom(): Float? {
        val now = SystemClock.elapsedRealtime()
        if (now - headroomAt >= HEADROOM_EVERY_MS) {
            headroom = power.getThermalHeadroom(HEADROOM_AHEAD_S).takeUnless { it.isNaN() }
            headroomAt = now
        }
        return headroom
    }

    private companion object {
        const val HEADROOM_EVERY_MS = 10_000L
        const val HEADROOM_AHEAD_S = 10
    }
}
