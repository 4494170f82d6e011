"""The dialect of OpenAI's client: images, chat and completions, held until the job is done, over the one store."""
