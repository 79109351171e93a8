package dev.paceline.demo.device

import android.content.ContentResolver
import android.net.Uri
import android.os.ParcelFileDescriptor
import android.provider.DocumentsContract
import android.provider.DocumentsContract.Document

/** The files of a directory that the file picker gave, open as descriptors: the core maps them where they lie. */
class TreeFiles private constructor(private val files: Map<String, ParcelFileDescriptor>) : AutoCloseable {
    val descriptors: Map<String, Int> get() = files.mapValues { it.value.fd }

    override fun close() = files.values.forEach { it.close() }

    companion object {
        private const val MOST_FILES = 64

        /** Null where the directory cannot be read any more, or a file of it cannot be opened. */
        fun open(resolver: ContentResolver, tree: Uri): TreeFiles? {
            val opened = mutableMapOf<String, ParcelFileDescriptor>()
            val isComplete = try {
                list(resolver, tree)?.all { (name, file) ->
                    val descriptor = resolver.openFileDescriptor(file, "r")
                    if (descriptor != null) opened[name] = descriptor
                    descriptor != null
                } ?: false
            } catch (_: Exception) { // providers throw what they like: SecurityException, FileNotFoundException, IllegalArgumentException
                false
            }
            val files = TreeFiles(opened)
            if (isComplete) return files
            files.close()
            return null
        }

        private fun list(resolver: ContentResolver, tree: Uri): List<Pair<String, Uri>>? {
            val children = DocumentsContract.buildChildDocumentsUriUsingTree(tree, DocumentsContract.getTreeDocumentId(tree))
            val columns = arrayOf(Document.COLUMN_DOCUMENT_ID, Document.COLUMN_DISPLAY_NAME, Document.COLUMN_MIME_TYPE)
            return resolver.query(children, columns, null, null, null)?.use { rows ->
                val found = mutableListOf<Pair<String, Uri>>()
                while (rows.moveToNext() && found.size < MOST_FILES) {
                    if (rows.getString(2) == Document.MIME_TYPE_DIR) continue
                    found += rows.getString(1) to DocumentsContract.buildDocumentUriUsingTree(tree, rows.getString(0))
                }
                found
            }
        }
    }
}
