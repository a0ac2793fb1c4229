"""The live page: runs below a folder, watched and never touched."""
