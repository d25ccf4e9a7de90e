"""The commands of ``forge-cute``, a module each, imported when they are called; nothing imports them."""
