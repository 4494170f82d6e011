"""The dialect of OpenAI's client: images, held texts and streamed ones, and batches, over the one store."""
