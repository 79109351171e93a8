package dev.paceline.demo.device

import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertNotNull
import kotlin.test.assertNull

class MemoryTest {
    @Test
    fun `anonymous memory is found`() {
        assertEquals(1234L * 1024, rssAnonBytes("VmRSS:\t 9999 kB\nRssAnon:\t    1234 kB\nRssFile:\t 7 kB\n"))
        assertNull(rssAnonBytes("VmRSS:\t 9999 kB\n"))
        assertNotNull(rssAnonBytes(File("/proc/self/status").readText()))
    }

    @Test
    fun `the budget leaves the system its own, and always asks`() {
        assertEquals(700, memoryBudget(1000, 300))
        assertEquals(1, memoryBudget(100, 300))
    }

    @Test
    fun `the model is freed where the process would be killed`() =
        assertEquals(listOf(15, 40, 60, 80), listOf(5, 10, 15, 20, 40, 60, 80).filter(::freesModel))
}
