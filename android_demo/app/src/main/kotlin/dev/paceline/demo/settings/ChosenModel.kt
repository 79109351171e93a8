package dev.paceline.demo.settings

import dev.paceline.demo.engine.ModelSource

/** The model that the user chose, kept until another one is. */
class ChosenModel(private val values: KeyValues) {
    fun load(): ModelSource? {
        val name = values.get(NAME) ?: return null
        val place = values.get(PLACE) ?: return null
        return when (values.get(KIND)) {
            FOLDER -> ModelSource.Folder(name, place)
            TREE -> ModelSource.Tree(name, place)
            else -> null
        }
    }

    fun save(source: ModelSource) = values.put(
        when (source) {
            is ModelSource.Folder -> mapOf(KIND to FOLDER, NAME to source.name, PLACE to source.path)
            is ModelSource.Tree -> mapOf(KIND to TREE, NAME to source.name, PLACE to source.uri)
        },
    )

    private companion object {
        const val KIND = "model_kind"
        const val NAME = "model_name"
        const val PLACE = "model_place"
        const val FOLDER = "folder"
        const val TREE = "tree"
    }
}
