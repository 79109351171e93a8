package dev.paceline.demo.device

import android.content.ContentResolver
import android.content.Intent
import android.net.Uri
import android.provider.DocumentsContract
import dev.paceline.demo.engine.ModelSource

/** Directories of the file picker that the app may read from now on, also after a restart. */
fun chosenTrees(resolver: ContentResolver): List<ModelSource.Tree> =
    resolver.persistedUriPermissions.filter { it.isReadPermission }.map { ModelSource.Tree(treeName(it.uri), it.uri.toString()) }

fun keepTree(resolver: ContentResolver, tree: Uri): ModelSource.Tree {
    resolver.takePersistableUriPermission(tree, Intent.FLAG_GRANT_READ_URI_PERMISSION)
    return ModelSource.Tree(treeName(tree), tree.toString())
}

fun forgetTree(resolver: ContentResolver, tree: Uri) =
    resolver.releasePersistableUriPermission(tree, Intent.FLAG_GRANT_READ_URI_PERMISSION)

/** The last part of a directory's id, such as "primary:Download/e2b", which a person may know. */
private fun treeName(tree: Uri) = DocumentsContract.getTreeDocumentId(tree).substringAfterLast('/').substringAfterLast(':')
