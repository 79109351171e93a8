package dev.paceline.demo.device

import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertNull

class LastExitTest {
    @Test
    fun `what the system says becomes a cause`() {
        assertEquals(LastExit(ExitCause.LOW_MEMORY, "", 2048), lastExit(3, 0, null, 2))
        assertEquals(ExitCause.NATIVE_CRASH, lastExit(5, 11, "crash", 0)?.cause)
        assertEquals(ExitCause.ANR, lastExit(6, 0, "Input dispatching timed out", 0)?.cause)
        assertEquals(ExitCause.KILLED, lastExit(2, 9, null, 0)?.cause)
        assertEquals(ExitCause.MEMORY_LIMIT, lastExit(13, 0, "MemoryLimiter:AnonSwap", 0)?.cause)
    }

    @Test
    fun `ends that were meant are not told`() {
        for (reason in listOf(0, 1, 8, 10, 11, 12, 14, 15, 16)) assertNull(lastExit(reason, 0, "x", 1))
        assertNull(lastExit(2, 15, null, 0))
    }
}
